"""The subcommands of `mtp-loader`, listed in `mtp_loader.cli.COMMANDS`."""
