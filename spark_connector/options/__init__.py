"""The options of a read or write: declared, checked, typed. Imported by everything above; asks no broker."""
