"""Recognizes tables and slot variables among the variables."""
