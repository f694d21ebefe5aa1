"""Tests of moeir/serving/."""
