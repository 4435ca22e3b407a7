"""The archive: closed segments in a file system or object store, and the manifests that say which of them count."""
