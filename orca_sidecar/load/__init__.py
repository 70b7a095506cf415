"""What the node and kube-apiserver are doing: measured, smoothed, and put into the report cell."""
