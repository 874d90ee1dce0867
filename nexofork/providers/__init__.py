"""Model providers: exact bytes in, typed events out. The only importer of ``anthropic``."""
