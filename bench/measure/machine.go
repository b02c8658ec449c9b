package measure

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Machine is where it was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Disk   string `json:"disk"` // file system and device of the data
	Go     string `json:"go"`   // that the generator and qlogd are built with
}

// ThisMachine describes the machine, and the disk that dir is on.
func ThisMachine(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	field := func(file, name string) string {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, name); ok {
				return strings.Trim(rest, " \t:\n")
			}
		}
		return "unknown"
	}
	m.CPU = field("/proc/cpuinfo", "model name")
	m.Memory = field("/proc/meminfo", "MemTotal")
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = string(bytes.TrimSpace(b))
	if b, err := exec.Command("df", "--output=fstype,source", dir).Output(); err == nil {
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		m.Disk = strings.Join(strings.Fields(lines[len(lines)-1]), " ")
	}
	return m
}
