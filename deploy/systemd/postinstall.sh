#!/bin/sh
# After installing or upgrading: the user, and who may read the settings. A node that
# runs keeps the old program until "systemctl restart qlogd", one node at a time.
set -e
getent passwd qlogd >/dev/null ||
  useradd --system --user-group --home-dir /var/lib/qlogd --no-create-home \
    --shell /usr/sbin/nologin qlogd
chgrp qlogd /etc/qlogd
chmod 0750 /etc/qlogd
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
