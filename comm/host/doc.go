// Package host is the backend for tensors in host memory.
package host
