"""Measurements that compare both sides in one run and print JSON."""
