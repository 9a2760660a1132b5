"""Geometry without tensors: layouts, boxes, canonical tensors, catalogs and the moves between them."""
