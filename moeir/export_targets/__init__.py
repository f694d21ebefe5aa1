"""Export targets, engines that serve all experts: their document files, schema and loading script."""
