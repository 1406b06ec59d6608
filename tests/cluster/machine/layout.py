"""Addresses and paths inside a test cluster, which its parts agree on."""

NODE = "node-1"
NODE_ADDRESS = "10.245.0.1"  # of the device node0; nameserver and API server answer there
NODE_DEVICE = "node0"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_ADDRESS = "10.96.0.1"  # first of SERVICE_NETWORK: the Service `kubernetes`
CLUSTER_DOMAIN = "cluster.local"

API_PORT = 6443
CRD_API_PORT = 6444
KUBE_PROXY_PORT = 10256  # its health

# The sandbox's folder is /run inside.
PKI = "/run/pki"
IMAGES = "/run/images"  # containerd's root
