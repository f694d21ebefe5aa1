"""Engines that serve what experts say: the files each reads, its schema, and a script that loads them."""
