"""Runs in their folders: how one is trained and kept, whose weights it left, and how flat they lie.

``layout`` and ``measures`` say what is where and what it is called; they need no torch, and the report reads by them.
"""
