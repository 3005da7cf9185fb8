// Package testkit holds what the tests of all packages share: when a test runs, which external programs it
// needs, and helpers for processes.
//
// # The ladder
//
// A test without a mark belongs to the first rung, which "go test ./..." runs on any machine. A test that
// takes seconds, waits in real time, starts a job of processes or uses another program calls [Long] first
// and runs only with -long. A test whose name contains Emulated runs kernels on the emulated GPU; it is long
// too; "make emulated" runs only these tests. The race detector sees only one process, so with it [Start],
// [Run] and [Build] skip the test. CONTRIBUTING.md has the table of the rungs.
//
//	func TestEtcdLosesItsLeader(t *testing.T) {
//		testkit.Long(t)
//		testkit.Need(t, testkit.Root, testkit.Command("etcd"))
//		...
//	}
//
// # Processes
//
// [Start] starts a process, reads its output, and ends it with the test. [Build] builds programs of this
// module, [Self] makes the test binary itself one of the programs that it gave to [Main], and [World] starts
// the ranks of a job as a scheduler does, without golaunch. Every wait has the deadline [Soon].
package testkit
