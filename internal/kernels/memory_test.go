package kernels

import (
	"errors"
	"math"
	"testing"
	"testing/fstest"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

// host returns a file system with the given files of /proc and /sys.
func host(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

const meminfo = "MemTotal:    1000 kB\nMemFree:     10 kB\nMemAvailable:   400 kB\nHugePages_Total:  0\n"

func TestRead(t *testing.T) {
	const inner, old = "sys/fs/cgroup/a/b", "sys/fs/cgroup/memory"
	for name, test := range map[string]struct {
		files map[string]string
		want  usage
	}{
		"no files":  {nil, usage{0, math.MaxInt64}},
		"no groups": {map[string]string{"proc/meminfo": meminfo}, usage{600 << 10, 400 << 10}},
		"swap":      {map[string]string{"proc/meminfo": meminfo + "SwapTotal: 200 kB\nSwapFree: 50 kB\n"}, usage{750 << 10, 450 << 10}},
		"a group with less, and some swap": {map[string]string{
			"proc/meminfo": meminfo + "SwapTotal: 200 kB\nSwapFree: 50 kB\n", "proc/self/cgroup": "0::/a/b\n",
			inner + "/memory.max": "50000\n", inner + "/memory.current": "42000\n",
			inner + "/memory.swap.max": "3000\n", inner + "/memory.swap.current": "1000\n",
		}, usage{40000, 10000}},
		"a group with less": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/x\n0::/a/b\n",
			inner + "/memory.max": "50000\n", inner + "/memory.current": "42000\n",
			inner + "/memory.stat": "anon 5000\nactive_file 1000\ninactive_file 300\n",
		}, usage{40700, 9300}},
		"a group above it with less": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			inner + "/memory.max": "50000\n", inner + "/memory.current": "42000\n",
			"sys/fs/cgroup/a/memory.max": "47000\n", "sys/fs/cgroup/a/memory.current": "48000\n",
		}, usage{47000, 0}},
		"the namespace's own group": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.current": "2000\n",
		}, usage{2000, 3000}},
		"groups without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			inner + "/memory.max": "max\n", inner + "/memory.current": "42000\n",
		}, usage{600 << 10, 400 << 10}},
		"a group of version 1 with less": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "12:cpuset:/\n5:cpu,memory:/a/b\n1:name=systemd:/a\n0::/\n",
			old + "/a/b/memory.limit_in_bytes": "50000\n", old + "/a/b/memory.usage_in_bytes": "42000\n",
			old + "/a/b/memory.stat":       "active_file 7\ntotal_active_file 1000\ntotal_inactive_file 300\n",
			old + "/memory.limit_in_bytes": "9223372036854771712\n", old + "/memory.usage_in_bytes": "60000\n",
			old + "/memory.stat": "total_active_file 90000\n",
		}, usage{40700, 9300}},
		"a container of version 1, with some swap": {map[string]string{
			"proc/meminfo": meminfo + "SwapTotal: 200 kB\nSwapFree: 50 kB\n", "proc/self/cgroup": "5:memory:/docker/1234\n",
			old + "/memory.limit_in_bytes": "50000\n", old + "/memory.usage_in_bytes": "42000\n",
			old + "/memory.memsw.limit_in_bytes": "53000\n", old + "/memory.memsw.usage_in_bytes": "43000\n",
		}, usage{40000, 10000}},
		"a group outside of the namespace": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../c\n0::\n",
		}, usage{600 << 10, 400 << 10}},
	} {
		if got := read(host(test.files)); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	testkit.Need(t, testkit.Linux) // other hosts do not tell
	if err := CheckMemory(small); err != nil {
		t.Errorf("of %d bytes: %v", small, err)
	}
	var oom *device.OutOfMemoryError
	if err := CheckMemory(1 << 50); !errors.As(err, &oom) || oom.Asked != 1<<50 || oom.Free <= 0 || oom.InUse <= 0 {
		t.Errorf("of a pebibyte: %v", err)
	}
}
