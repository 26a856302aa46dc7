"""Tables of logged steps: schemas, import, splits and export."""
