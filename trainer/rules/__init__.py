"""The rules of features: how columns become ids and numbers, in training and in exported models.

Importable without torch. Uses core.
"""
