"""Methods that the papers compare with, one file each, named as in the literature."""
