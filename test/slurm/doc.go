// Package slurm tests golaunch under real Slurm: a controller and compute nodes, each on its own emulated host
// (package [github.com/goddp/goddp/internal/testkit/netns]). The tests are skipped with the reason if Slurm is
// not installed or namespaces are not permitted.
//
//	go test ./test/slurm -long
package slurm
