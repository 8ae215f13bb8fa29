"""The configuration tree (`models`), the walk over it (`keys`) and layered loading (`load`)."""
