"""The wire forms in which clients ask and are answered; the gateway knows only ``dialect.py``."""
