package vfs

import "golang.org/x/sys/unix"

// sole asks the kernel, which gives a lease for writing to who has the file open
// alone. It is false where the file system has no leases.
func (f osFile) sole(names uint64) (yes bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = conn.Control(func(fd uintptr) {
		var st unix.Stat_t
		if err := unix.Fstat(int(fd), &st); err != nil || uint64(st.Nlink) != names { // of a size of its own on each architecture
			return
		}
		if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK); err == nil {
			_, err = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
			yes = err == nil
		}
	})
	return yes
}
