"""What people see: the command line, its tables and the demo; talks to the service over HTTP."""
