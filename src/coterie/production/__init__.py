"""After training: models of single clients as files for production, and their predictions."""

from coterie.production.exporting import Exported, export
from coterie.production.predicting import predict

__all__ = ["Exported", "export", "predict"]
