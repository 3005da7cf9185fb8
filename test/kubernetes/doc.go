// Package kubernetes tests the manifests of examples/kubernetes and the Dockerfile. The manifests are decoded
// into the published Go types of Kubernetes, JobSet and Kubeflow Trainer, which have no field for a mistyped
// name. Then the containers' commands run with their environments, each pod as a host of its own.
//
// It is a module of its own, so that programs which use goddp do not depend on Kubernetes.
package kubernetes
