"""Maintenance of an open store by the process that serves it: regular backups, and the removal of old posts."""

from cablestore.maintenance.backup_schedule import BackupPlan, BackupSchedule, BackupState, wait_ms
from cablestore.maintenance.metrics import MaintenanceMetrics
from cablestore.maintenance.retention import Retention
from cablestore.maintenance.running import Maintenance, MaintenancePlan

__all__ = [
    "BackupPlan",
    "BackupSchedule",
    "BackupState",
    "Maintenance",
    "MaintenanceMetrics",
    "MaintenancePlan",
    "Retention",
    "wait_ms",
]
