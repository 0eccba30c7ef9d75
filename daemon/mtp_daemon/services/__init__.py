"""mtpd under a service manager: systemd's user manager on Linux, launchd on macOS."""
