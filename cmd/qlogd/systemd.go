package main

import (
	"net"
)

// sdNotify tells systemd (Type=notify) what the server is doing. Without
// systemd it does nothing; a failure is nobody's trouble but systemd's.
func sdNotify(getenv func(string) string, state string) {
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if name[0] == '@' {
		name = "\x00" + name[1:] // the abstract name space
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
