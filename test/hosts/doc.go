// Package hosts holds the tests of jobs on several hosts. Each host is a network namespace with its own
// addresses (internal/testkit/netns). On each, golaunch starts workers that train (test/hosts/worker).
//
//	go test ./test/hosts -long                 a few jobs, in seconds
//	make hosts                                 all of them, with 100 seeded kills; minutes
//	go test ./test/hosts -run Kills -long -kills 1 -seed 17 -v    one of these again
//
// The tests need Linux, root, iproute2 and nftables; some need etcd, or Python with PyTorch. A test
// that lacks something is skipped with the reason.
package hosts
