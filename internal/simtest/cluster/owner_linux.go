package cluster

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// ownersKnown: the system tells whose connection one is.
const ownersKnown = true

// inodeOf returns the inode of the socket at a connection's other end, which is
// on this machine. It asks for this one socket (sock_diag(7)): the table of all,
// /proc/net/tcp, takes so long where there are many that nodes miss each
// other's heartbeats.
func inodeOf(c net.Conn) (uint32, bool) {
	theirs, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || theirs.IP.To4() == nil {
		return 0, false
	}
	ours := c.LocalAddr().(*net.TCPAddr)
	const (
		netlinkSockDiag  = 4
		sockDiagByFamily = 20
		headSize         = 16
		requestSize      = 56
		inodeAt          = headSize + 4 + 48 + 16
	)
	// struct nlmsghdr, struct inet_diag_req_v2 and in it struct inet_diag_sockid.
	b := make([]byte, headSize+requestSize)
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], syscall.NLM_F_REQUEST)
	r := b[headSize:]
	r[0], r[1] = syscall.AF_INET, syscall.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(r[8:], uint16(theirs.Port))
	binary.BigEndian.PutUint16(r[10:], uint16(ours.Port))
	copy(r[12:], theirs.IP.To4())
	copy(r[28:], ours.IP.To4())
	binary.NativeEndian.PutUint64(r[48:], ^uint64(0)) // no cookie

	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, netlinkSockDiag)
	if err != nil {
		return 0, false
	}
	defer syscall.Close(fd)
	if err := syscall.Sendto(fd, b, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return 0, false
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, 0)
	if err != nil || n < inodeAt+4 || binary.NativeEndian.Uint16(answer[4:]) != sockDiagByFamily {
		return 0, false
	}
	return binary.NativeEndian.Uint32(answer[inodeAt:]), true
}

// holds reports whether a process holds a socket.
func holds(pid int, inode uint32) bool {
	dir, want := fmt.Sprintf("/proc/%d/fd", pid), fmt.Sprintf("socket:[%d]", inode)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == want {
			return true
		}
	}
	return false
}
