"""What is wrong with data, found line by line behind any fault, and what a mended copy of it says."""
