"""The rules of features, a file each: keys, checks, types, NumPy form, torch form and signature of one rule.

Importable without torch. Uses core.
"""
