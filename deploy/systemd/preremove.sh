#!/bin/sh
# Before removing the package, and not at an upgrade: dpkg passes remove, rpm 0. The
# data in /var/lib/qlogd, the settings and the user stay.
set -e
if [ "$1" = remove ] || [ "$1" = 0 ]; then
  if [ -d /run/systemd/system ]; then
    systemctl disable --now qlogd
  fi
fi
