"""What a run leaves behind: its directory, history, models and the table that is printed at the end."""

from coterie.runs.about import About
from coterie.runs.directory import RunDirectory, system_folder
from coterie.runs.environment import environment
from coterie.runs.guard import guard_sentences, load_guard, save_guard
from coterie.runs.history import History, Measured
from coterie.runs.lock import held, locked
from coterie.runs.losses import Losses, has_losses, load_losses, save_losses
from coterie.runs.models import (
    StoredModel,
    client_file,
    copy_model,
    load_model,
    read_model,
    save_models,
    stored_clients,
)
from coterie.runs.newcomers import NewcomersDirectory
from coterie.runs.newcomers_table import newcomers_table
from coterie.runs.record import Record
from coterie.runs.relations import load_relations, save_relations
from coterie.runs.table import result_table

__all__ = [
    "About",
    "History",
    "Losses",
    "Measured",
    "NewcomersDirectory",
    "Record",
    "RunDirectory",
    "StoredModel",
    "client_file",
    "copy_model",
    "environment",
    "guard_sentences",
    "has_losses",
    "held",
    "load_guard",
    "load_losses",
    "load_model",
    "load_relations",
    "locked",
    "newcomers_table",
    "read_model",
    "result_table",
    "save_guard",
    "save_losses",
    "save_models",
    "save_relations",
    "stored_clients",
    "system_folder",
]
