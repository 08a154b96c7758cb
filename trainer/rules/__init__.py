"""The rules of features, one file for each: keys, checks, types, NumPy form, torch form and signature.

Importable without torch. Uses core.
"""
