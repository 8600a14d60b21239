typedef int sl_placeholder_weights;
