package jobenv

import (
	"fmt"
	"runtime"
	"strconv"
)

// numVar is the variable by which users, launchers and libraries choose the number of threads.
const numVar = "OMP_NUM_THREADS"

// launcherVar holds the same number as numVar if golaunch chose it, and not the user.
const launcherVar = "GODDP_LAUNCHER_THREADS"

// ThreadsEnv returns the variables that golaunch adds to the environment of workers, for a user who
// has not set OMP_NUM_THREADS. They are torchrun's: one thread each for several workers of a node, and
// no limit for one. isSet reports whether a variable is set.
func ThreadsEnv(isSet func(name string) bool, workers int) []string {
	if workers == 1 || isSet(numVar) {
		return nil
	}
	return []string{numVar + "=1", launcherVar + "=1"}
}

// Threads returns the number of threads of each of localSize ranks on this host: OMP_NUM_THREADS if the
// user chose it, else the rank's share of the cores. getenv is a function such as os.Getenv.
func Threads(getenv func(string) string, localSize int) (int, error) {
	text := getenv(numVar)
	if text == "" || text == getenv(launcherVar) {
		return max(1, runtime.GOMAXPROCS(0)/localSize), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q, not a number of at least 1", numVar, text)
	}
	return n, nil
}
