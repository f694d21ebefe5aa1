"""Answers over HTTP, to people in a browser and to agents: what is served, requests and their batches, routes, tools, and the page."""
