typedef int sl_placeholder_model;
