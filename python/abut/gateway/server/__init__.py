"""The gateway's HTTP server: its routes, keys, connections and limits."""
