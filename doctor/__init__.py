"""``denizen doctor``: looks at the installation and the home, says how to mend, mends what is safe.

Needs no running service. Beside ``service`` it is the other place where the packages meet.
"""
