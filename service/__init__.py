"""What puts the packages together: parts, routes, jobs and the process. No algorithm."""

from memory.errors import ConfigError, DenizenError
from service.process import serve
from service.service import Service

__all__ = ["ConfigError", "DenizenError", "Service", "serve"]
