package jobenv

import (
	"fmt"
	"runtime"
	"strconv"
)

// ThreadsEnv returns the variables that golaunch adds to the environment of workers, for a user who
// has not set OMP_NUM_THREADS. They are torchrun's: one thread each for several workers of a node, and
// no limit for one. isSet reports whether a variable is set.
func ThreadsEnv(isSet func(name string) bool, workers int) []string {
	if workers == 1 || isSet(ThreadsVar) {
		return nil
	}
	return []string{ThreadsVar + "=1", LauncherThreadsVar + "=1"}
}

// Threads returns the number of threads of each of localSize ranks on this host: OMP_NUM_THREADS if the
// user chose it, else the rank's share of the cores. getenv is a function such as os.Getenv.
func Threads(getenv func(string) string, localSize int) (int, error) {
	text := getenv(ThreadsVar)
	if text == "" || text == getenv(LauncherThreadsVar) {
		return max(1, runtime.GOMAXPROCS(0)/localSize), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q, not a number of at least 1", ThreadsVar, text)
	}
	return n, nil
}
