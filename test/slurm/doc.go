// Package slurm tests golaunch under real Slurm: a controller and compute nodes, each of them a host of its own
// (package [github.com/goddp/goddp/internal/testkit/netns]). The tests skip, with the reason, where Slurm is not
// installed or namespaces are not permitted.
//
//	go test ./test/slurm -long
package slurm
