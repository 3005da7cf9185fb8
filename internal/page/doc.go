// Package page shows runs in a browser.
//
// A [Run] holds what is known of a job: the numbers that its workers report, their states and output, and what happened.
// All of it is bounded, whatever the workers send. Each number of each rank is a series of at most 4096 buckets. When a
// series is full, neighbouring buckets are joined, and a bucket knows the least, the greatest and the mean value of its
// steps. So a spike of one step is never lost. A step that comes again, after a restart for example, replaces the old
// one and those after it, so a run stays one curve. A run names the rank that the others wait for, and says why if the state
// of the rank's GPU and host explains it.
//
// A [Server] serves runs over HTTP: the page itself, one document without references; the state, as Server-Sent Events; the
// points of a curve, in as many bins as the browser has pixels; the lines of a rank; and metrics for Prometheus. It
// answers only who has its token.
package page
