"""The coding agents: one file per harness behind one contract (base.py), all driven over ACP
through sandbox-agent."""
