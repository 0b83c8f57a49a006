"""Program -> Program, one pass a file."""
