"""What lies on disk: manifests and digests, write beside then rename, journals and arrays that grow."""
