"""What flows where, how fast, and stepping in: pages and an API over pipelines and relays. Start with `Dashboard`."""

from databus.dashboard._alert_config import Alerting
from databus.dashboard._alert_rules import grafana_dashboard, prometheus_rules
from databus.dashboard._parts import Part, part_of_file, part_of_pipeline, part_of_relay
from databus.dashboard._push import Form
from databus.dashboard._server import Dashboard, DashboardConfig
from databus.dashboard._watcher import Hook, Push

__all__ = [
    "Alerting",
    "Dashboard",
    "DashboardConfig",
    "Form",
    "Hook",
    "Part",
    "Push",
    "grafana_dashboard",
    "part_of_file",
    "part_of_pipeline",
    "part_of_relay",
    "prometheus_rules",
]
