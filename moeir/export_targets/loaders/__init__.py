"""Scripts that an export holds as `load.py`; each needs its engine's package, and neither moeir nor another script but `documents.py`."""
