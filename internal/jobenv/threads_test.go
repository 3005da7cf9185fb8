package jobenv

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// getenv returns a function that finds the variables of a list of NAME=value.
func getenv(env ...string) func(string) string {
	return func(name string) string {
		for _, kv := range slices.Backward(env) {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func isSet(env ...string) func(string) bool {
	return func(name string) bool { return getenv(env...)(name) != "" }
}

// What golaunch chooses for programs that compute no share of their own does not limit goddp's ranks.
func TestRanksShareTheCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(12))
	for _, test := range []struct {
		env     []string
		workers int
		want    int
	}{
		{nil, 1, 12},
		{nil, 4, 3},
		{nil, 100, 1},
		{ThreadsEnv(isSet(), 4), 4, 3},
		{append(ThreadsEnv(isSet(), 4), "OMP_NUM_THREADS=5"), 4, 5}, // a script that starts the program chose it
		{append([]string{"OMP_NUM_THREADS=1"}, ThreadsEnv(isSet("OMP_NUM_THREADS=1"), 4)...), 4, 1},
	} {
		if got, err := Threads(getenv(test.env...), test.workers); err != nil || got != test.want {
			t.Errorf("%d workers with %q: %d threads, %v, want %d", test.workers, test.env, got, err, test.want)
		}
	}
	if _, err := Threads(getenv("OMP_NUM_THREADS=0"), 1); err == nil || !strings.Contains(err.Error(), `OMP_NUM_THREADS is "0"`) {
		t.Errorf("0 threads: %v", err)
	}
}
