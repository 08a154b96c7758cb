"""The rules of features: keys, checks, types of columns, NumPy form, torch form and signature of exports.

Importable without torch. Uses core.
"""
